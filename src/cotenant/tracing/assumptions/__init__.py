"""Values that a trace assumes because nobody computed them."""
