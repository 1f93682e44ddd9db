"""Fine-tuning of fitted models: objective, search, trainer."""
