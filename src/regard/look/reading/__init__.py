"""Reading a record: summaries of heads, flow between tokens, words of tokens."""
