"""What is served over HTTP and gRPC: `kbert-serve`."""
