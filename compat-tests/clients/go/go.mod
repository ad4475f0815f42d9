module rangeway.invalid/compat

go 1.26.0
