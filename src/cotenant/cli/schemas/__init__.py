"""The JSON that commands print, as typed dictionaries; `docs/reference/outputs.schema.json` is made of them."""
