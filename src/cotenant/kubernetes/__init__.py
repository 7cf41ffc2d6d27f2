"""Manifests and pods of Kubernetes, with the GPU memory that they need. Experimental: no cluster has seen it."""
