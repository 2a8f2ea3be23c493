"""Services that run: what their engines and load generators say of them, as figures and as a trace to replay."""
