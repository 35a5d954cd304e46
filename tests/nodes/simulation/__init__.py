"""Lives of nodes, drawn at random and judged by an oracle that knows only the world's own record and the design's rules."""
