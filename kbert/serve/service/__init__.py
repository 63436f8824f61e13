"""The service of `kbert-serve`, over HTTP and gRPC."""
