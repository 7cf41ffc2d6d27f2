"""The process that traces: started, kept warm, asked and answered."""
