"""Fine-tuning: the search of weights near an anchor, its objective, folds, trainer."""
