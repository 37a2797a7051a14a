// What is asked for, by flags or in a file of the same words.
#pragma once

#include "picture.h"

#include <fstream>

struct Settings {
    bool churn = false, json = false, on_host = true;
    Size size{1280, 720}, target_size;
    double bitrate = 0, fps = 0;
    int frames = 120, threads = 1, surfaces = 128, checked = 2, group = 30;
    std::string source, target;
};

constexpr const char* HELP = R"(gmedia: transcodes pictures on the GPU, and says how many a second

Pictures in a simple intra-only format are decoded, brought to the target's size and colours, and coded again: motion search,
DCT, quantisation to a bit rate, variable-length codes. Every picture's surfaces are mapped for it, and unmapped after it.

  --case transcode|churn    churn: pictures are only copied, through a large pool of surfaces [transcode]
  --resolution SIZE         of the source: 240p, 360p, 480p, 720p, 1080p, or WxH [720p; a file has its own]
  --target-resolution SIZE  of the target [one step below the source's]
  --bitrate N[k|m]          of the target, bits a second [0.1 for each pixel]
  --fps N                   pictures that a second of the target has [the source's, or 30]
  --frames N                pictures that each thread transcodes; a source that has fewer goes back and forth [120]
  --threads N               each with a context and a stream of its own, all with the same source [1]
  --source FILE             Y4M, 4:2:0, 8 bits [a test picture]. ffmpeg -i in.mp4 -pix_fmt yuv420p in.y4m
  --target FILE             what a decoder will see, Y4M, of the first thread. mpv out.y4m, ffplay out.y4m
  --group N                 pictures from one intra picture to the next [30]
  --surfaces N              that each thread has at once, with --case churn [128]
  --memory host|device      where surfaces lie: in the host's pages, or in the GPU's memory [host]
  --check N                 pictures that are transcoded on the CPU as well; all must be the same, bit by bit [2]
  --json                    one line of JSON
  --config FILE             flags from a file: lines of `name = value`, as `resolution = 480p`; # begins a comment

All threads' streams must be the same, and the first pictures what the CPU makes of them: else it ends with 1.
SUNDIAL_PHASES=steps: it says `begin` before the first picture and `end` after the last, and waits for a line each time.
)";

inline Size size_named(const std::string& text) {
    static const struct {
        const char* name;
        Size size;
    } known[] = {{"240p", {426, 240}}, {"360p", {640, 360}}, {"480p", {854, 480}}, {"720p", {1280, 720}}, {"1080p", {1920, 1080}}};
    for (auto& one : known) {
        if (text == one.name) return one.size;
    }
    Size size;
    char rest = 0;
    bool two = std::sscanf(text.c_str(), "%dx%d%c", &size.w, &size.h, &rest) == 2;
    if (!two || size.w < 16 || size.h < 16 || size.w > 8192 || size.h > 8192 || size.w % 2 != 0 || size.h % 2 != 0) {
        fail("`" + text + "` is no size: 240p to 1080p, or WxH, both even, from 16 to 8192");
    }
    return size;
}

inline Size one_below(Size size) {
    for (int h : {720, 480, 360, 240}) {
        if (h < size.h) return {int((size.w * int64_t(h) + size.h) / size.h / 2 * 2), h};
    }
    return size;
}

inline double number(const std::string& name, const std::string& text, double low, double high) {
    char* end = nullptr;
    double value = std::strtod(text.c_str(), &end);
    if (*end == 'k' || *end == 'm') value *= *end++ == 'k' ? 1e3 : 1e6;
    if (text.empty() || *end != 0 || !(value >= low && value <= high)) {
        fail("--" + name + " is a number from " + std::to_string(int64_t(low)) + " to " + std::to_string(int64_t(high)) +
             ", not `" + text + "`");
    }
    return value;
}

inline bool one_of(const std::string& name, const std::string& text, const char* no, const char* yes) {
    if (text != no && text != yes) fail("--" + name + " is " + no + " or " + yes + ", not `" + text + "`");
    return text == yes;
}

inline void read_file(Settings& options, const std::string& path);

inline void set(Settings& options, const std::string& name, const std::string& text) {
    auto whole = [&](int low, int high) { return int(number(name, text, low, high)); };
    if (name == "case") options.churn = one_of(name, text, "transcode", "churn");
    else if (name == "resolution") options.size = size_named(text);
    else if (name == "target-resolution") options.target_size = size_named(text);
    else if (name == "bitrate") options.bitrate = number(name, text, 1000, 1e9);
    else if (name == "fps") options.fps = number(name, text, 1, 1000);
    else if (name == "frames") options.frames = whole(1, 1 << 20);
    else if (name == "threads") options.threads = whole(1, 64);
    else if (name == "source") options.source = text;
    else if (name == "target") options.target = text;
    else if (name == "group") options.group = whole(1, 1 << 20);
    else if (name == "surfaces") options.surfaces = whole(2, 1 << 14);
    else if (name == "memory") options.on_host = one_of(name, text, "device", "host");
    else if (name == "check") options.checked = whole(0, 1 << 20);
    else if (name == "json") options.json = one_of(name, text, "no", "yes");
    else if (name == "config") read_file(options, text);
    else fail("there is no --" + name + "; --help says what there is");
}

inline void read_file(Settings& options, const std::string& path) {
    std::ifstream file(path);
    if (!file) fail("cannot read " + path);
    for (std::string line; std::getline(file, line);) {
        line.resize(std::min(line.find('#'), line.size()));
        auto trimmed = [](std::string text) {
            size_t from = text.find_first_not_of(" \t\r"), to = text.find_last_not_of(" \t\r");
            return from == std::string::npos ? std::string() : text.substr(from, to - from + 1);
        };
        if (trimmed(line).empty()) continue;
        size_t equals = line.find('=');
        if (equals == std::string::npos) fail(path + ": `" + trimmed(line) + "` is no `name = value`");
        std::string name = trimmed(line.substr(0, equals));
        if (name == "config") fail(path + ": there is no file in a file");
        set(options, name, trimmed(line.substr(equals + 1)));
    }
}

inline Settings options_of(int argc, char** argv) {
    Settings options;
    for (int i = 1; i < argc; ++i) {
        std::string flag = argv[i];
        if (flag == "--help" || flag == "-h") {
            std::fputs(HELP, stdout);
            std::exit(0);
        }
        if (flag.rfind("--", 0) != 0) fail("`" + flag + "` is no flag; --help says what there is");
        if (flag == "--json") {
            options.json = true;
        } else if (i + 1 == argc) {
            fail(flag + " needs a value");
        } else {
            set(options, flag.substr(2), argv[++i]);
        }
    }
    return options;
}
