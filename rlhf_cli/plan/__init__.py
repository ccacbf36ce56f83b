"""Plan a run before it starts: columns, rewards, batch arithmetic, memory. Uses no module that imports torch."""
