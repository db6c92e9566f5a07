#pragma once
/* A temporary folder for one test: `char dir[ER_TEST_PATH_MAX]; er_test_tempdir(dir); ...
 * er_test_rmtree(dir);` */

#define ER_TEST_PATH_MAX 512

/* Makes a fresh folder under TMPDIR or /tmp; ends the process when it cannot. */
void er_test_tempdir(char ret_path[ER_TEST_PATH_MAX]);
/* As rm -rf, not following links. Complains to stderr only. */
void er_test_rmtree(const char *path);
/* Whole content, which must equal strlen(text) bytes; ends the process when it cannot write. */
void er_test_write_file(const char *path, const char *text);
/* The same, for nobody else to read. */
void er_test_write_secret(const char *path, const char *text);
/* Whole file with a final NUL, on the heap (caller frees); NULL when it cannot be read. */
char *er_test_read_file(const char *path);
