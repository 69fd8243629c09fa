"""On-policy post-training of language models as composable pure functions."""
