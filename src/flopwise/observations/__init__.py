"""Running services: measurements of their engines and load generators, as figures and as a trace to replay."""
