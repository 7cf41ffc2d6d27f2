"""A workload becomes an Estimate: declared, traced, and later by history or learning."""
