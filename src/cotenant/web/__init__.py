"""The web page: rendered on the server from the daemon's HTTP API, in a process of its own. Needs `cotenant[web]`."""
