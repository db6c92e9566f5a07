#!/usr/bin/env python3
"""`make install` is complete: a program outside the tree compiles and links against what it installed, in C and C++."""

import os
import subprocess
import sys
import tempfile

# A network of two layers learns to tell two points apart, with nothing but public headers; C and C++.
MODEL = """
int main(void)
{
    static struct er_flat_param table[4];
    static const float points[4] = {1, -1, -1, 1};
    static const int32_t labels[2] = {0, 1};
    struct er_error err = ER_ERROR_INIT;
    struct er_optim optim = er_optim_sgd();
    struct er_shape shapes[4] = {er_shape_2d(3, 2), er_shape_1d(3), er_shape_2d(2, 3), er_shape_1d(2)};
    struct er_shape input = er_shape_2d(2, 2);
    const char *names[4] = {"fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"};
    struct er_flat flat;
    struct er_pool *pool = NULL;
    struct er_tape *tape = NULL;
    double sum = 0, first = 0;

    if (er_error_set(&err, ER_E_USAGE, "installed") != ER_E_USAGE || er_matmul_setup(&err) < 0)
        return 1;
    er_flat_init(&flat, table, 4, er_optim_state_names(optim.kind), er_optim_states_n(optim.kind));
    for (int i = 0; i < 4; i++)
        if (er_flat_add(&flat, names[i], &shapes[i], NULL, &err) < 0)
            return 2;
    if (er_pool_new(&pool, er_flat_bytes(&flat), &err) < 0)
        return 3;
    er_flat_bind(&flat, er_pool_alloc(pool, er_flat_bytes(&flat), ER_FLAT_ALIGN));
    for (size_t p = 0; p < 4; p += 2)
        for (size_t i = 0; i < 6; i++)
            er_flat_at(&flat, ER_FLAT_VALUE, p)[i] = (float)(er_rng(1, p, 0, i) % 1000) / 1000.0f - 0.4f;
    if (er_tape_new(&tape, &flat, 0, &err) < 0)
        return 4;
    for (uint64_t step = 1; step <= 50; step++) {
        struct er_optim_view view = er_optim_view_flat(&flat);
        struct er_tensor *x, *loss;

        if (er_tape_begin(tape, &err) < 0 || er_tape_input(tape, "points", &input, points, &x, &err) < 0 ||
            er_linear(tape, x, er_tape_param(tape, 0), er_tape_param(tape, 1), &x, &err) < 0 ||
            er_relu(tape, x, &x, &err) < 0 ||
            er_linear(tape, x, er_tape_param(tape, 2), er_tape_param(tape, 3), &x, &err) < 0 ||
            er_cross_entropy(tape, x, labels, &sum, &loss, &err) < 0 || er_tape_backward(tape, loss, &err) < 0)
            return fprintf(stderr, "%s\\n", err.text), 5;
        first = step == 1 ? sum : first;
        er_optim_apply(&optim, &view, step, 0.1, 0.5);
    }
    er_tape_free(tape);
    er_pool_free(pool);
    printf("loss %.3f -> %.3f\\n", first, sum);
    return sum < first / 4 ? 0 : 6;
}
"""
OURS = ("-lelastic-train", "-lelastic-ckpt", "-lelastic")


def run(*command, **options):
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def find(root, name):
    """Completions bear the programs' names too."""
    for folder, _, files in os.walk(root):
        if name in files and "bash-completion" not in folder:
            return os.path.join(folder, name)
    sys.exit(f"{name} was not installed")


def whole(flags):
    """Every object of our libraries, so that what they need and the .pc files do not name shows."""
    others = [flag for flag in flags if flag not in OURS]
    folders = [flag for flag in others if not flag.startswith("-l")]
    return [*folders, "-Wl,--whole-archive", *OURS, "-Wl,--no-whole-archive", *[f for f in others if f.startswith("-l")]]


build = os.environ["ER_TEST_BUILD"]
with open(os.path.join(os.environ["ER_TEST_SOURCE"], "packaging", "headers.txt"), encoding="utf-8") as headers:
    PROGRAM = "#include <stdio.h>\n" + "".join(f'#include "{header}"\n' for header in headers.read().split()) + MODEL
with tempfile.TemporaryDirectory() as dest:
    run("meson", "install", "-C", build, "--no-rebuild", "--destdir", dest)
    pc = find(dest, "elastic-train.pc")
    prefix = os.path.dirname(os.path.dirname(find(dest, "elastic-run")))
    flags = run("pkg-config", f"--define-variable=prefix={prefix}", "--cflags", "--libs", "elastic-train", env=dict(
        os.environ, PKG_CONFIG_PATH=os.path.dirname(pc))).split()
    for compiler, suffix in (("cc", ".c"), ("c++", ".cpp")):
        source, program = os.path.join(dest, "use" + suffix), os.path.join(dest, "use")
        with open(source, "w", encoding="utf-8") as f:
            f.write(PROGRAM)
        run(compiler, "-Wall", "-Wextra", "-Werror", source, "-o", program, *whole(flags))
        print(run(program).strip())
    # The page's example, as the page says.
    with open(find(dest, "building.md"), encoding="utf-8") as f:
        example = f.read().split("```c\n")[1].split("```")[0]
    numbers = os.path.join(dest, "numbers.c")
    with open(numbers, "w", encoding="utf-8") as f:
        f.write(example)
    elastic = run("pkg-config", f"--define-variable=prefix={prefix}", "--cflags", "--libs", "elastic", env=dict(
        os.environ, PKG_CONFIG_PATH=os.path.dirname(pc))).split()
    run("cc", numbers, "-o", numbers[:-2], *elastic)
    lines = run(find(dest, "elastic-run"), "--nproc-per-node", "2", numbers[:-2]).splitlines()
    if sorted(line[:11] for line in lines) != ["rank 0 of 2", "rank 1 of 2"]:
        sys.exit(f"the example printed {lines}")
    for example in ("hello", "epoch_loop"):
        run("cc", os.path.join(os.environ["ER_TEST_SOURCE"], "examples", example + ".c"), "-o", os.path.join(dest, example), *flags)
    package = os.path.dirname(find(dest, "world.py"))
    run(sys.executable, "-c", "import elastic; print(elastic.join().world)", env=dict(
        {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}, PYTHONPATH=os.path.dirname(package)))
    find(dest, "LICENSE")
    print(run(find(dest, "elastic-run"), "--version").strip())
    run(sys.executable, "-B", os.path.join(os.environ["ER_TEST_SOURCE"], "packaging", "uninstall.py"), build, dest)
    left = [name for _, _, names in os.walk(prefix) for name in names]
    left += [folder for folder in (package, os.path.join(prefix, "include", "elastic-run")) if os.path.exists(folder)]
    if left:
        sys.exit(f"uninstall left {left}")
