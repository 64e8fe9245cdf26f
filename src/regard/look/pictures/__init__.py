"""Pictures drawn by matplotlib: heat maps of attention, shaded texts."""
