"""Hosts: GPUs and attempts of other machines, through an agent on each that speaks over its stdin and stdout."""
