"""Networks from a configuration or from a list of layers. All but `layer_list` need torch."""
