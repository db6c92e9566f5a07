// Gloo as packaged: peer_gloo RANKS BYTES:RUNS... Lines "BYTES p50 p99" on stdout: microseconds of an all-reduce of float32
// in place, ring algorithm (the default), ranks as processes over loopback.
#include <gloo/algorithm.h>
#include <gloo/allreduce.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

static double now_us()
{
    auto t = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration<double, std::micro>(t).count();
}

static void measure(const std::shared_ptr<gloo::Context> &context, size_t bytes, int runs)
{
    std::vector<float> x(bytes / sizeof(float));
    std::vector<double> us;

    for (int i = -runs / 8 - 1; i < runs; i++) {
        gloo::AllreduceOptions options(context);
        options.setOutput(x.data(), x.size());
        options.setReduceFunction(
            static_cast<void (*)(void *, const void *, const void *, size_t)>(&gloo::sum<float>));
        double began = now_us();
        gloo::allreduce(options);
        if (i >= 0)
            us.push_back(now_us() - began);
    }
    std::sort(us.begin(), us.end());
    if (context->rank == 0)
        printf("%zu %g %g\n", bytes, us[us.size() / 2], us[us.size() * 99 / 100]);
    fflush(stdout);
}

static void run_rank(const std::string &folder, int rank, int size, int argc, char **argv)
{
    gloo::transport::tcp::attr attr("127.0.0.1");
    gloo::rendezvous::FileStore store(folder);
    auto context = std::make_shared<gloo::rendezvous::Context>(rank, size);

    auto device = gloo::transport::tcp::CreateDevice(attr);
    context->connectFullMesh(store, device);
    for (int i = 2; i < argc; i++) {
        size_t bytes = 0;
        int runs = 0;
        if (sscanf(argv[i], "%zu:%d", &bytes, &runs) == 2 && runs > 0)
            measure(context, bytes, runs);
    }
}

int main(int argc, char **argv)
{
    char folder[] = "/tmp/er-peer-gloo-XXXXXX";
    int size = argc > 1 ? atoi(argv[1]) : 0, failed = 0, status = 0;

    if (size < 1 || !mkdtemp(folder))
        return 1;
    signal(SIGPIPE, SIG_IGN);
    for (int rank = 0; rank < size; rank++)
        if (fork() == 0) {
            try {
                run_rank(folder, rank, size, argc, argv);
            } catch (const std::exception &e) {
                fprintf(stderr, "rank %d: %s\n", rank, e.what());
                _exit(1);
            }
            _exit(0);
        }
    while (wait(&status) > 0)
        failed |= status;
    std::error_code ignored;
    std::filesystem::remove_all(folder, ignored);
    return failed ? 1 : 0;
}
