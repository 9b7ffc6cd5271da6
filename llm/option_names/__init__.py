"""Every name that an option has or had, and what became of it."""
