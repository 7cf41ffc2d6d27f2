"""`cotenant study`: one module for each study, and what they share."""
