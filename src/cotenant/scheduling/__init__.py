"""Events in, commands out: the manager, policies, filters, scores, recovery, explanations. Pure."""
