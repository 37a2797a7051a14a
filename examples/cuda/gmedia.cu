// GMedia: transcoding on the GPU, after the media benchmark of gHyvi's evaluation (USENIX ATC 2015), which is made of Intel's
// media functions; here the codec is our own (gmedia/codec.h). What it is for is not the codec, but that surfaces come and go
// with every picture: page tables change all the time (gmedia/surfaces.h). `gmedia --help` says what can be asked for.
//
// - gmedia/codec.h: samples and bits, once for GPU and CPU. kernels.h: the GPU's steps. cpu.h: the CPU's.
// - gmedia/picture.h: Y4M, and the test picture. options.h: flags and files. surfaces.h, driver.h: virtual memory.
#pragma nv_diag_suppress 1675
#pragma GCC optimize("O2")
#include "check.h"

#include "gmedia/options.h"
#include "gmedia/kernels.h"
#include "gmedia/surfaces.h"

#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

using Clock = std::chrono::steady_clock;

static double ms_since(Clock::time_point start) {
    return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

// Pictures that are prepared of the source: coded, as they come to the GPU.
constexpr int MOST_PREPARED = 24;
constexpr int SOURCE_QUANTISER = 8, FIRST_QUANTISER = 24, FINEST = 6;

struct Source {
    Size size;
    double fps = 30;
    std::vector<Bytes> pictures;
    std::vector<Coded> coded;
    Steps steps = steps_of(SOURCE_QUANTISER, true);

    // Who copies needs one picture, not coded.
    explicit Source(const Settings& options) : size(options.size) {
        const int most = options.churn ? 1 : std::min(options.frames, MOST_PREPARED);
        if (options.source.empty()) {
            for (int i = 0; i < most; ++i) pictures.push_back(test_picture(size, i));
        } else {
            Y4mReader reader(options.source);
            size = reader.size;
            fps = reader.fps;
            for (Bytes picture; int(pictures.size()) < most && reader.next(picture);) pictures.push_back(picture);
            if (pictures.empty()) fail(options.source + " has no picture");
        }
        for (const Bytes& picture : pictures) {
            if (!options.churn) coded.push_back(cpu::encode_source(picture, size, steps));
        }
    }
    // Forth, and back, and forth again: so that things move as they did.
    int at(int number) const {
        int last = int(pictures.size()) - 1;
        if (last == 0) return 0;
        int place = number % (2 * last);
        return place <= last ? place : 2 * last - place;
    }
};

// What a thread tells of its work.
struct Report {
    double ms = 0, map_ms = 0, gpu_ms = 0, host_ms = 0, squares = 0;
    uint64_t bits = 0, hash = 14695981039346656037ull, mapped = 0;
    bool passed = true;
};

// What of the first pictures is compared with the CPU's.
struct Kept {
    Coded coded;
    Bytes made;
    int quantiser;
    bool intra;
};

// Memory of the GPU that stays.
template <typename T>
struct Buffer {
    T* at = nullptr;
    explicit Buffer(size_t count) { CHECK(cudaMalloc(&at, count * sizeof(T))); }
    Buffer(const Buffer&) = delete;
    ~Buffer() { CHECK(cudaFree(at)); }
};
// And of the host, for copies.
template <typename T>
struct Pinned {
    T* at = nullptr;
    explicit Pinned(size_t count) { CHECK(cudaMallocHost(&at, count * sizeof(T))); }
    Pinned(const Pinned&) = delete;
    ~Pinned() { CHECK(cudaFreeHost(at)); }
};

// Bits a picture may have: fewer after those that had too many.
class Rate {
    double wanted, debt = 0;

  public:
    int quantiser = FIRST_QUANTISER;

    explicit Rate(double wanted) : wanted(wanted) {}
    void spent(double bits, bool intra) {
        debt += bits - wanted;
        if (intra) return;
        double next = std::max(wanted - debt / 8, wanted / 4);
        quantiser = clamp(quantiser + clamp(int(std::lround(6 * std::log2(bits / next))), -3, 3), FINEST, LAST_QUANTISER);
    }
};

class Transcoder {
    const Settings& options;
    const Source& source;
    Size from, to;
    Colours colours;
    cudaStream_t stream;
    Surfaces surfaces;
    Buffer<uint32_t> in_offsets, out_offsets, errors;
    Buffer<Steps> source_steps, steps;
    Buffer<Motion> motion;
    Buffer<unsigned long long> squares;
    Pinned<uint32_t> words;
    Pinned<Steps> step_values;
    Pinned<unsigned long long> squares_there;
    Pinned<uint32_t> errors_there;
    Pinned<uint8_t> made_there;
    Words coded;
    Surface before;
    Rate rate;

    // The picture, and its luma halved.
    static size_t with_half(Size size) { return size_t(size.bytes()) + size.luma() / 4; }
    static size_t stream_bytes(const Coded& coded) { return coded.words.size() * 4; }
    // Levels take two bytes each; coded, they seldom do.
    static std::vector<size_t> sizes(const Source& source, Size to) {
        size_t largest = 0;
        for (const Coded& coded : source.coded) largest = std::max(largest, stream_bytes(coded));
        return {largest, size_t(source.size.levels()) * 2, size_t(source.size.bytes()), with_half(to), size_t(to.levels()) * 2,
                with_half(to), with_half(to), size_t(to.levels()) * 3};
    }

  public:
    Transcoder(const Driver& driver, const Settings& options, const Source& source, cudaStream_t stream)
        : options(options), source(source), from(source.size), to(options.target_size), colours(colours_of(to)),
          stream(stream), surfaces(driver, 0, options.on_host, sizes(source, to)), in_offsets(from.slices() + 1),
          out_offsets(to.slices() + 1), errors(1), source_steps(1), steps(2), motion(to.macroblocks()), squares(1),
          words(to.slices() + 1), step_values(2), squares_there(1), errors_there(1), made_there(to.bytes()),
          rate(options.bitrate / options.fps) {
        CHECK(cudaMemcpy(source_steps.at, &source.steps, sizeof(Steps), cudaMemcpyHostToDevice));
    }
    ~Transcoder() { reset(); }

    void reset() {
        if (before.at != 0) surfaces.unmap(before);
        rate = Rate(options.bitrate / options.fps);
    }

    void picture(int number, Report& report, Y4mWriter* target, Kept* kept) {
        const Coded& in = source.coded[source.at(number)];
        bool intra = number % options.group == 0;
        Clock::time_point start = Clock::now();
        size_t mapped = surfaces.mapped;
        Surface stream_in = surfaces.map(stream_bytes(in)), levels_in = surfaces.map(size_t(from.levels()) * 2);
        Surface decoded = surfaces.map(from.bytes()), scaled = surfaces.map(with_half(to));
        Surface levels = surfaces.map(size_t(to.levels()) * 2), made = surfaces.map(with_half(to));
        report.map_ms += ms_since(start);

        start = Clock::now();
        step_values.at[0] = steps_of(rate.quantiser, false);
        step_values.at[1] = steps_of(rate.quantiser, true);
        CHECK(cudaMemcpyAsync(stream_in.as<void>(), in.words.data(), stream_bytes(in), cudaMemcpyHostToDevice, stream));
        CHECK(cudaMemcpyAsync(in_offsets.at, in.offsets.data(), in.offsets.size() * 4, cudaMemcpyHostToDevice, stream));
        CHECK(cudaMemcpyAsync(steps.at, step_values.at, 2 * sizeof(Steps), cudaMemcpyHostToDevice, stream));
        CHECK(cudaMemsetAsync(levels_in.as<void>(), 0, size_t(from.levels()) * 2, stream));
        CHECK(cudaMemsetAsync(errors.at, 0, 4, stream));
        CHECK(cudaMemsetAsync(squares.at, 0, 8, stream));
        decode_slices<<<groups(from.slices(), SLICE_THREADS), SLICE_THREADS, 0, stream>>>(
            stream_in.as<uint32_t>(), in_offsets.at, from, levels_in.as<int16_t>(), errors.at);
        reconstruct<<<groups(from.macroblocks(), TOGETHER), TRANSFORM_THREADS, 0, stream>>>(
            levels_in.as<int16_t>(), source_steps.at, from, decoded.as<uint8_t>());
        const uint8_t* planes = decoded.as<uint8_t>();
        convert<<<groups(to.luma() / 4, 128), 128, 0, stream>>>(scale_of(planes, from, to, 0), scale_of(planes, from, to, 1),
                                                                 scale_of(planes, from, to, 2), colours,
                                                                 scaled.as<uint8_t>(), to);
        if (intra) {
            no_motion<<<groups(to.macroblocks(), 128), 128, 0, stream>>>(to, motion.at);
        } else {
            halve<<<groups(to.luma() / 16, 128), 128, 0, stream>>>(scaled.as<uint8_t>(), to);
            search<<<to.macroblocks(), SEARCH_THREADS, 0, stream>>>(scaled.as<uint8_t>(), before.as<uint8_t>(), to, motion.at);
        }
        encode<<<groups(to.macroblocks(), TOGETHER), TRANSFORM_THREADS, 0, stream>>>(
            scaled.as<uint8_t>(), before.as<uint8_t>(), motion.at, steps.at, to, levels.as<int16_t>(), made.as<uint8_t>());
        halve<<<groups(to.luma() / 16, 128), 128, 0, stream>>>(made.as<uint8_t>(), to);
        compare<<<to.h, 128, 0, stream>>>(scaled.as<uint8_t>(), made.as<uint8_t>(), to, squares.at);
        measure_slices<<<groups(to.slices(), SLICE_THREADS), SLICE_THREADS, 0, stream>>>(motion.at, levels.as<int16_t>(), to,
                                                                                out_offsets.at);
        CHECK(cudaGetLastError());
        CHECK(cudaMemcpyAsync(words.at, out_offsets.at, to.slices() * 4, cudaMemcpyDeviceToHost, stream));
        CHECK(cudaMemcpyAsync(squares_there.at, squares.at, 8, cudaMemcpyDeviceToHost, stream));
        CHECK(cudaMemcpyAsync(errors_there.at, errors.at, 4, cudaMemcpyDeviceToHost, stream));
        CHECK(cudaStreamSynchronize(stream));
        report.gpu_ms += ms_since(start);

        // Now it is known where each slice begins, and how much memory all take.
        uint32_t all = 0;
        for (int slice = 0; slice < to.slices(); ++slice) {
            uint32_t own = words.at[slice];
            words.at[slice] = all;
            all += own;
        }
        words.at[to.slices()] = all;
        start = Clock::now();
        Surface stream_out = surfaces.map(size_t(all) * 4);
        report.map_ms += ms_since(start);

        start = Clock::now();
        coded.resize(all);
        CHECK(cudaMemcpyAsync(out_offsets.at, words.at, to.slices() * 4, cudaMemcpyHostToDevice, stream));
        write_slices<<<groups(to.slices(), SLICE_THREADS), SLICE_THREADS, 0, stream>>>(motion.at, levels.as<int16_t>(), to,
                                                                              out_offsets.at, stream_out.as<uint32_t>());
        CHECK(cudaGetLastError());
        CHECK(cudaMemcpyAsync(coded.data(), stream_out.as<void>(), size_t(all) * 4, cudaMemcpyDeviceToHost, stream));
        if (target != nullptr || kept != nullptr) {
            CHECK(cudaMemcpyAsync(made_there.at, made.as<void>(), to.bytes(), cudaMemcpyDeviceToHost, stream));
        }
        CHECK(cudaStreamSynchronize(stream));
        report.gpu_ms += ms_since(start);

        start = Clock::now();
        for (Surface* surface : {&stream_in, &levels_in, &decoded, &scaled, &levels, &stream_out}) surfaces.unmap(*surface);
        if (before.at != 0) surfaces.unmap(before);
        before = made;
        report.map_ms += ms_since(start);

        start = Clock::now();
        if (target != nullptr) target->put(made_there.at);
        if (kept != nullptr) {
            *kept = {{coded, Words(words.at, words.at + to.slices() + 1)},
                     Bytes(made_there.at, made_there.at + to.bytes()), rate.quantiser, intra};
        }
        for (uint32_t word : coded) report.hash = (report.hash ^ word) * 1099511628211ull;
        report.passed = report.passed && *errors_there.at == 0;
        report.squares += double(*squares_there.at);
        report.bits += uint64_t(all) * 32;
        report.mapped += surfaces.mapped - mapped;
        rate.spent(all * 32.0, intra);
        report.host_ms += ms_since(start);
    }
};

// Copies through surfaces: each picture's is a copy of the one before, and the oldest goes.
class Churner {
    const Settings& options;
    const Source& source;
    size_t bytes;
    cudaStream_t stream;
    Surfaces surfaces;
    Buffer<uint32_t> errors;
    struct Live {
        Surface surface;
        cudaEvent_t done;
    };
    std::deque<Live> live;
    uint32_t number = 1;

    int pages(const Surface& surface) const { return int(surface.bytes / 4096); }

    Live fresh() {
        Live one = {surfaces.map(bytes), {}};
        CHECK(cudaEventCreateWithFlags(&one.done, cudaEventDisableTiming));
        return one;
    }
    // Its last use is being copied to the next.
    void drop_oldest() {
        CHECK(cudaEventSynchronize(live[live.size() > 1 ? 1 : 0].done));
        CHECK(cudaEventDestroy(live.front().done));
        surfaces.unmap(live.front().surface);
        live.pop_front();
    }

  public:
    Churner(const Driver& driver, const Settings& options, const Source& source, cudaStream_t stream)
        : options(options), source(source), bytes(source.size.bytes()), stream(stream),
          surfaces(driver, 0, options.on_host, std::vector<size_t>(options.surfaces, bytes)), errors(1) {
        CHECK(cudaMemset(errors.at, 0, 4));
        live.push_back(fresh());
        Surface& first = live.back().surface;
        CHECK(cudaMemcpyAsync(first.as<void>(), source.pictures[0].data(), bytes, cudaMemcpyHostToDevice, stream));
        first_number<<<groups(pages(first), 128), 128, 0, stream>>>(first.as<uint32_t>(), pages(first), number);
        CHECK(cudaEventRecord(live.back().done, stream));
        Report unused;
        while (int(live.size()) < options.surfaces) picture(unused);
        CHECK(cudaStreamSynchronize(stream));
    }
    ~Churner() {
        while (!live.empty()) drop_oldest();
    }

    void picture(Report& report) {
        Clock::time_point start = Clock::now();
        size_t mapped = surfaces.mapped;
        if (int(live.size()) == options.surfaces) drop_oldest();
        live.push_back(fresh());
        report.map_ms += ms_since(start);
        report.mapped += surfaces.mapped - mapped;
        start = Clock::now();
        const Surface &last = live[live.size() - 2].surface, &own = live.back().surface;
        CHECK(cudaMemcpyAsync(own.as<void>(), last.as<void>(), own.bytes, cudaMemcpyDeviceToDevice, stream));
        number_pages<<<groups(pages(own), 128), 128, 0, stream>>>(own.as<uint32_t>(), pages(own), ++number, errors.at);
        CHECK(cudaGetLastError());
        CHECK(cudaEventRecord(live.back().done, stream));
        report.gpu_ms += ms_since(start);
    }
    void finish(Report& report) {
        Clock::time_point start = Clock::now();
        CHECK(cudaStreamSynchronize(stream));
        report.gpu_ms += ms_since(start);
    }
    // Every page of every copy came from the right one, and the last is what the first was, but for the numbers.
    bool right() const {
        uint32_t wrong = 0;
        CHECK(cudaMemcpy(&wrong, errors.at, 4, cudaMemcpyDeviceToHost));
        Bytes last(bytes);
        CHECK(cudaMemcpy(last.data(), live.back().surface.as<void>(), bytes, cudaMemcpyDeviceToHost));
        for (size_t at = 0; at < bytes; ++at) {
            if (at % 4096 >= 8 && last[at] != source.pictures[0][at]) return false;
        }
        return wrong == 0;
    }
};

// Threads wait for each other, and for somebody who looks at the GPU meanwhile.
class Meeting {
    std::mutex mutex;
    std::condition_variable changed;
    int expected, there = 0, meetings = 0;
    const char* asked = std::getenv("SUNDIAL_PHASES");

  public:
    explicit Meeting(int expected) : expected(expected) {}
    void wait(const char* name) {
        std::unique_lock lock(mutex);
        int own = meetings;
        if (++there == expected) {
            if (asked != nullptr && std::strcmp(asked, "steps") == 0) {
                std::printf("%s\n", name);
                std::fflush(stdout);
                while (std::getchar() != '\n' && !std::feof(stdin)) {}
            }
            there = 0;
            ++meetings;
            changed.notify_all();
        } else {
            changed.wait(lock, [&] { return meetings != own; });
        }
    }
};

struct Shared {
    const Driver& driver;
    const Settings& options;
    const Source& source;
    Meeting meeting;
    std::vector<Report> reports;
    std::vector<Kept> kept;
};

// Before it is timed: everything is compiled, and has been used once.
constexpr int WARM_UP = 3;

static void thread(Shared& shared, int index) {
    const Settings& options = shared.options;
    Report& report = shared.reports[index];
    CUcontext context;
    cudaStream_t stream;
    CHECK_DRIVER(shared.driver.cuCtxCreate(&context, 0, 0));
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    auto timed = [&](auto work) {
        shared.meeting.wait("begin");
        Clock::time_point start = Clock::now();
        work();
        report.ms = ms_since(start);
        shared.meeting.wait("end");
    };
    if (options.churn) {
        Churner churner(shared.driver, options, shared.source, stream);
        timed([&] {
            for (int i = 0; i < options.frames; ++i) churner.picture(report);
            churner.finish(report);
        });
        report.passed = churner.right();
    } else {
        Transcoder transcoder(shared.driver, options, shared.source, stream);
        Report unused;
        for (int i = 0; i < WARM_UP; ++i) transcoder.picture(i, unused, nullptr, nullptr);
        transcoder.reset();
        std::unique_ptr<Y4mWriter> target;
        if (index == 0 && !options.target.empty()) {
            target = std::make_unique<Y4mWriter>(options.target, options.target_size, options.fps);
        }
        timed([&] {
            for (int i = 0; i < options.frames; ++i) {
                bool kept = index == 0 && i < int(shared.kept.size());
                transcoder.picture(i, report, target.get(), kept ? &shared.kept[i] : nullptr);
            }
        });
    }
    CHECK(cudaStreamDestroy(stream));
    CHECK_DRIVER(shared.driver.cuCtxDestroy(context));
}

// The first pictures, again on the CPU. `squares`: of the luma's differences to what the source was before it was coded.
static bool same_on_cpu(const Shared& shared, double& squares) {
    Size from = shared.source.size, to = shared.options.target_size;
    Colours colours = colours_of(to);
    Bytes before;
    for (size_t i = 0; i < shared.kept.size(); ++i) {
        const Kept& kept = shared.kept[i];
        int at = shared.source.at(int(i));
        Bytes scaled = cpu::convert(cpu::decode_source(shared.source.coded[at], from, shared.source.steps), from, to, colours);
        cpu::halve(scaled, to);
        Steps steps[2] = {steps_of(kept.quantiser, false), steps_of(kept.quantiser, true)};
        std::vector<Motion> motion;
        std::vector<int16_t> levels;
        Bytes made;
        Coded coded = cpu::encode(scaled, kept.intra ? Bytes() : before, steps, to, motion, levels, made);
        if (coded.words != kept.coded.words || coded.offsets != kept.coded.offsets || made != kept.made) {
            std::fprintf(stderr, "gmedia: picture %zu is not what the CPU makes of it\n", i);
            return false;
        }
        if (!cpu::can_be_decoded(kept.coded, to, motion, levels)) {
            std::fprintf(stderr, "gmedia: picture %zu cannot be decoded\n", i);
            return false;
        }
        squares += cpu::squares(made, cpu::convert(shared.source.pictures[at], from, to, colours), to);
        cpu::halve(made, to);
        before = made;
    }
    return true;
}

static std::string name_of(Size size) { return std::to_string(size.w) + "x" + std::to_string(size.h); }

int main(int argc, char** argv) {
    Settings options = options_of(argc, argv);
    Source source(options);
    if (options.target_size.w == 0) options.target_size = one_below(source.size);
    if (options.fps == 0) options.fps = source.fps;
    Size to = options.churn ? source.size : options.target_size;
    if (options.bitrate == 0) options.bitrate = 0.1 * to.w * to.h * options.fps;
    Driver driver;
    if (options.on_host) {
        int able = 0;
        CHECK_DRIVER(driver.cuDeviceGetAttribute(&able, CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 0));
        if (!able) fail("this GPU does not map the host's memory; there is --memory device");
    }
    Shared shared{driver, options, source, Meeting(options.threads), std::vector<Report>(options.threads), {}};
    shared.kept.resize(options.churn ? 0 : std::min(options.checked, options.frames));
    std::vector<std::thread> threads;
    for (int i = 0; i < options.threads; ++i) threads.emplace_back(thread, std::ref(shared), i);
    for (std::thread& one : threads) one.join();

    double ms = 0, each = 0, squares = 0, squares_checked = 0, map_ms = 0, gpu_ms = 0, host_ms = 0;
    uint64_t bits = 0, mapped = 0;
    bool passed = true;
    for (const Report& report : shared.reports) {
        passed = passed && report.passed && report.hash == shared.reports[0].hash;
        ms = std::max(ms, report.ms);
        each += options.frames * 1e3 / report.ms / options.threads;
        squares += report.squares, bits += report.bits, mapped += report.mapped;
        map_ms += report.map_ms, gpu_ms += report.gpu_ms, host_ms += report.host_ms;
    }
    passed = passed && same_on_cpu(shared, squares_checked);
    const double pictures = double(options.frames) * options.threads, samples = double(to.w) * to.h;
    const double fps = pictures * 1e3 / ms, psnr = cpu::psnr(squares, samples * pictures);
    const double psnr_source = cpu::psnr(squares_checked, samples * double(shared.kept.size()));
    const double megabits = double(bits) / pictures * options.fps / 1e6;
    const char* name = options.churn ? "churn" : "transcode";
    if (options.json) {
        std::printf("{\"program\":\"gmedia\",\"passed\":%s,\"case\":\"%s\",\"source\":\"%s\",\"target\":\"%s\",\"threads\":%d,"
                    "\"frames\":%d,\"fps\":%.3f,\"fps_per_thread\":%.3f,\"fps_threads\":[",
                    passed ? "true" : "false", name, name_of(source.size).c_str(), name_of(to).c_str(), options.threads,
                    options.frames, fps, each);
        for (const Report& report : shared.reports) {
            std::printf("%s%.3f", &report == shared.reports.data() ? "" : ",", options.frames * 1e3 / report.ms);
        }
        std::printf("],\"ms\":%.3f,\"map_ms\":%.4f,\"gpu_ms\":%.4f,\"host_ms\":%.4f,\"mapped_bytes\":%.0f", ms,
                    map_ms / pictures, gpu_ms / pictures, host_ms / pictures, double(mapped) / pictures);
        if (!options.churn) {
            std::printf(",\"psnr\":%.3f,\"bytes\":%llu,\"bitrate\":%.0f,\"checked\":%zu", psnr,
                        static_cast<unsigned long long>(bits / 8), megabits * 1e6, shared.kept.size());
            if (!shared.kept.empty()) std::printf(",\"psnr_source\":%.3f", psnr_source);
        }
        std::printf("}\n");
    } else {
        std::printf("%s, %s to %s, %d threads, %d pictures each\n", name, name_of(source.size).c_str(), name_of(to).c_str(),
                    options.threads, options.frames);
        for (size_t i = 0; i < shared.reports.size(); ++i) {
            std::printf("  thread %zu: %.2f pictures a second\n", i, options.frames * 1e3 / shared.reports[i].ms);
        }
        std::printf("  all: %.2f pictures a second; of a thread, in the mean: %.2f\n", fps, each);
        std::printf("  a picture: %.2f ms to map and unmap %.0f KiB, %.2f ms on the GPU, %.2f ms on the host\n",
                    map_ms / pictures, double(mapped) / pictures / 1024, gpu_ms / pictures, host_ms / pictures);
        if (!options.churn) {
            std::printf("  PSNR (luma) %.2f dB; %.3f Mbit/s, wanted %.3f; the first %zu the same on the CPU", psnr, megabits,
                        options.bitrate / 1e6, shared.kept.size());
            if (!shared.kept.empty()) std::printf(", %.2f dB to the source", psnr_source);
            std::printf("\n");
        }
        int runtime = 0;
        CHECK(cudaRuntimeGetVersion(&runtime));
        std::printf("gmedia: %s (CUDA runtime %d.%d)\n", passed ? "PASSED" : "FAILED", runtime / 1000, runtime % 1000 / 10);
    }
    return passed ? 0 : 1;
}
