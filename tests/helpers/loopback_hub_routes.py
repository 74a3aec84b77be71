# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""The requests that the loopback Hub answers, the handler method for each, and the methods that write."""

REPO = r"(?:(?P<kind>models|datasets|spaces)/)(?P<name>[^/]+/[^/]+)"
DOWNLOAD = r"/(?:(?P<kind>datasets|spaces)/)?(?P<name>[^/]+/[^/]+)"
API = rf"/api/{REPO}"
ROUTES = [
    (("GET",), "/api/whoami-v2", "whoami"),
    (("POST",), "/api/repos/create", "create"),
    (("POST",), "/api/validate-yaml", "validate_yaml"),
    (("GET",), API, "info"),
    (("GET",), rf"{API}/revision/(?P<revision>[^/]+)", "info"),
    (("POST",), rf"{API}/branch/(?P<branch>[^/]+)", "create_branch"),
    (("GET",), rf"{API}/tree/(?P<revision>[^/]+)(?:/(?P<path>.+))?", "tree"),
    (("POST",), rf"{API}/paths-info/(?P<revision>[^/]+)", "paths_info"),
    (("POST",), rf"{API}/preupload/(?P<revision>[^/]+)", "preupload"),
    (("POST",), rf"{API}/commit/(?P<revision>[^/]+)", "commit"),
    (("POST",), rf"{DOWNLOAD}\.git/info/lfs/objects/batch", "lfs_batch"),
    (("PUT",), r"/lfs/(?P<oid>[0-9a-f]{64})", "lfs_put"),
    (("POST",), r"/lfs/(?P<oid>[0-9a-f]{64})/verify", "lfs_verify"),
    (("GET", "HEAD"), rf"{DOWNLOAD}/resolve/(?P<revision>[^/]+)/(?P<path>.+)", "resolve"),
]
WRITES = ("create_branch", "preupload", "commit", "lfs_batch")
