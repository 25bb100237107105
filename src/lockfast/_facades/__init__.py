"""What users hold in their hands, but for `Locks` itself: the two faces of each thing side by side."""
