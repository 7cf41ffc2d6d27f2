"""Texts, tokens and vocabularies that are not on this machine."""
