"""Predictions for jobs to come: workloads, their history, activity and interference."""
