#pragma once
/* The parts of the launch benchmark that need more than a run from start to end. */

/* Roles in which the benchmark starts itself as a worker: argv[1] names one. Exit status, or -1:
 * the arguments name none. */
int launch_role(int argc, char **argv);
int launch_write(int argc, char **argv);

/* SIGKILL of one worker until the last one of the next generation runs. */
void launch_restart(void);
/* Memory of agent and guard, and what they do while the workers work. */
void launch_idle(void);
/* What workers write, through files and console. */
void launch_tee(void);
