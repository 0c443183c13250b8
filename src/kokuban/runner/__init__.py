"""A StepPlan becomes arrays, a Program run and a StepResult."""
