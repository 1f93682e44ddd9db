"""Learning-rate schedules over all steps, and the base class of all schedules."""
