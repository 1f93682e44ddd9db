"""The graph that predicts and is given away, and the session that runs it."""
