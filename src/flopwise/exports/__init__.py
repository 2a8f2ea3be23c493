"""Plans as files that deploy them: configurations, manifests, scripts, rules and dashboards of other tools."""
