"""Export of plans to the files of other tools: configurations, manifests, scripts, rules and dashboards."""
