"""Constants fitted to published measurements: few, shared, bounded, each drawn to what is known of it beforehand."""
