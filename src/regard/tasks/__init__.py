"""Tasks: sequence to sequence, tagging and classification; each reads its data, trains, predicts and is scored."""
