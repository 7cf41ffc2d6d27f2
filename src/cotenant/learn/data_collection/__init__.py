"""Configurations drawn, and labelled one by one."""
