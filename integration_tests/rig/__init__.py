"""What the integration tests share: servers, queries, jobs, what is written and what must come out."""
