"""The inference graph, which predicts and is exported, and the session that runs it."""
