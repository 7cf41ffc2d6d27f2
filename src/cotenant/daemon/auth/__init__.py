"""Authentication and authorization: the peer of a connection, and what it may do."""
