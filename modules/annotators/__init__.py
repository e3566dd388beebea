"""Models that describe images: captioners, which write captions, and maskers, which write masks."""
