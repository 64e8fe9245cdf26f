"""Files, texts and sentences as examples, units, ids and batches."""
