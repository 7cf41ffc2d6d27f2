"""A server or cluster made of numbers, moved from event to event."""
