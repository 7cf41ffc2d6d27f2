"""The loop that joins the rooms, its configuration, its HTTP interface and its client."""
