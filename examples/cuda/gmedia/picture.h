// Pictures from files and to files: Y4M (YUV4MPEG2, 4:2:0, 8 bits), which ffmpeg and mpv read and write. And a test picture
// that moves. The source is kept in full-range BT.601, as JPEG has it.
#pragma once

#include "cpu.h"

#include <cmath>
#include <cstdio>
#include <string>

[[noreturn]] inline void fail(const std::string& what) {
    std::fprintf(stderr, "gmedia: %s\n", what.c_str());
    std::exit(2);
}

// From full-range BT.601 to limited range: BT.601 below 720 lines, BT.709 from there on, as is usual.
inline Colours colours_of(Size size) {
    const double kr = 0.299, kb = 0.114, kg = 1 - kr - kb;
    const bool high = size.h >= 720;
    const double tr = high ? 0.2126 : kr, tb = high ? 0.0722 : kb, tg = 1 - tr - tb;
    // Columns: what Y, U and V of the source contribute to red, green and blue.
    const double rgb[3][3] = {{1, 0, 2 * (1 - kr)}, {1, -2 * (1 - kb) * kb / kg, -2 * (1 - kr) * kr / kg}, {1, 2 * (1 - kb), 0}};
    Colours colours;
    for (int i = 0; i < 3; ++i) {
        double y = tr * rgb[0][i] + tg * rgb[1][i] + tb * rgb[2][i];
        colours.y[i] = int(std::lround(y * 219 / 255 * 16384));
        colours.u[i] = int(std::lround((rgb[2][i] - y) / (2 * (1 - tb)) * 224 / 255 * 16384));
        colours.v[i] = int(std::lround((rgb[0][i] - y) / (2 * (1 - tr)) * 224 / 255 * 16384));
    }
    return colours;
}

// The samples of a plane that are none of the picture repeat its last.
inline void pad(Bytes& picture, Size size) {
    for (int p = 0; p < 3; ++p) {
        int w = p == 0 ? size.w : size.w / 2, h = p == 0 ? size.h : size.h / 2, pitch = size.plane_pitch(p);
        uint8_t* plane = picture.data() + size.plane(p);
        for (int y = 0; y < h; ++y) std::memset(plane + y * pitch + w, plane[y * pitch + w - 1], pitch - w);
        for (int y = h; y < size.plane_rows(p); ++y) std::memcpy(plane + y * pitch, plane + (h - 1) * pitch, pitch);
    }
}

class Y4mReader {
    FILE* file;

    std::string line() {
        std::string text;
        for (int c = std::fgetc(file); c != '\n'; c = std::fgetc(file)) {
            if (c == EOF || text.size() > 4096) return "";
            text += char(c);
        }
        return text;
    }

  public:
    Size size;
    double fps = 30;
    bool full_range = false;

    explicit Y4mReader(const std::string& path) : file(std::fopen(path.c_str(), "rb")) {
        if (file == nullptr) fail("cannot read " + path);
        std::string head = line();
        if (head.rfind("YUV4MPEG2 ", 0) != 0) fail(path + " is no Y4M file");
        for (size_t at = head.find(' '); at != std::string::npos; at = head.find(' ', at + 1)) {
            const char* word = head.c_str() + at + 1;
            int above = 0, below = 0;
            if (*word == 'W') size.w = std::atoi(word + 1);
            if (*word == 'H') size.h = std::atoi(word + 1);
            if (*word == 'F' && std::sscanf(word + 1, "%d:%d", &above, &below) == 2 && below > 0) fps = double(above) / below;
            if (*word == 'C' && (std::strncmp(word, "C420", 4) != 0 || std::strncmp(word, "C420p1", 6) == 0)) {
                fail(path + " is not 4:2:0 of 8 bits (ffmpeg -pix_fmt yuv420p makes it so)");
            }
            if (std::strncmp(word, "XCOLORRANGE=FULL", 16) == 0) full_range = true;
        }
        if (size.w < 16 || size.h < 16 || size.w > 8192 || size.h > 8192 || size.w % 2 != 0 || size.h % 2 != 0) {
            fail(path + ": sizes are even, from 16 to 8192");
        }
    }
    // False at the end.
    bool next(Bytes& picture) {
        if (line().rfind("FRAME", 0) != 0) return false;
        picture.assign(size.bytes(), 0);
        for (int p = 0; p < 3; ++p) {
            size_t w = p == 0 ? size.w : size.w / 2, h = p == 0 ? size.h : size.h / 2;
            for (size_t y = 0; y < h; ++y) {
                uint8_t* row = picture.data() + size.plane(p) + y * size.plane_pitch(p);
                if (std::fread(row, 1, w, file) != w) return false;
                if (full_range) continue;
                int low = p == 0 ? 16 : 128, range = p == 0 ? 219 : 224;
                for (size_t x = 0; x < w; ++x) row[x] = uint8_t(clamp((row[x] - low) * 255 / range + (p == 0 ? 0 : 128), 0, 255));
            }
        }
        pad(picture, size);
        return true;
    }
    ~Y4mReader() { std::fclose(file); }
};

class Y4mWriter {
    FILE* file;
    Size size;

  public:
    Y4mWriter(const std::string& path, Size size, double fps) : file(std::fopen(path.c_str(), "wb")), size(size) {
        if (file == nullptr) fail("cannot write " + path);
        std::fprintf(file, "YUV4MPEG2 W%d H%d F%d:1000 Ip A1:1 C420jpeg XCOLORRANGE=LIMITED\n", size.w, size.h,
                     int(std::lround(fps * 1000)));
    }
    void put(const uint8_t* picture) {
        std::fprintf(file, "FRAME\n");
        for (int p = 0; p < 3; ++p) {
            size_t w = p == 0 ? size.w : size.w / 2, h = p == 0 ? size.h : size.h / 2;
            for (size_t y = 0; y < h; ++y) std::fwrite(picture + size.plane(p) + y * size.plane_pitch(p), 1, w, file);
        }
    }
    ~Y4mWriter() {
        if (std::fclose(file) != 0) fail("the target is not complete");
    }
};

// A texture that pans, discs that bounce before it, and colours that drift.
inline Bytes test_picture(Size size, int number) {
    constexpr int SIDE = 256;
    static const Bytes texture = [] {
        std::vector<int> rough(SIDE * SIDE);
        uint32_t state = 1;
        for (int& value : rough) state = state * 1664525u + 1013904223u, value = int(state >> 24);
        Bytes smooth(SIDE * SIDE);
        for (int i = 0; i < SIDE * SIDE; ++i) {
            int sum = 0;
            for (int k = 0; k < 25; ++k) sum += rough[(i / SIDE + k / 5) % SIDE * SIDE + (i + k % 5) % SIDE];
            smooth[i] = uint8_t(clamp((sum / 25 - 128) * 2 + 128, 0, 255));
        }
        return smooth;
    }();
    Bytes picture(size.bytes());
    struct Disc {
        int x, y, r, luma;
    } discs[5];
    auto bounce = [](int at, int range) { return at % (2 * range) < range ? at % (2 * range) : 2 * range - at % (2 * range); };
    for (int i = 0; i < 5; ++i) {
        int r = size.h / (6 + 2 * i);
        discs[i] = {bounce(i * 97 + number * (3 + i), size.w), bounce(i * 61 + number * (5 - i), size.h), r, 40 + 45 * i};
    }
    for (int y = 0; y < size.h; ++y) {
        uint8_t* row = picture.data() + y * size.pitch();
        for (int x = 0; x < size.w; ++x) {
            int luma = texture[(y + number) % SIDE * SIDE + (x + 3 * number) % SIDE];
            luma = (luma + 255 * x / size.w) / 2;
            for (const Disc& disc : discs) {
                int dx = x - disc.x, dy = y - disc.y;
                if (dx * dx + dy * dy < disc.r * disc.r) luma = (disc.luma * 3 + luma) / 4;
            }
            row[x] = uint8_t(luma);
        }
    }
    for (int y = 0; y < size.h / 2; ++y) {
        for (int x = 0; x < size.w / 2; ++x) {
            int at = y * (size.pitch() / 2) + x;
            picture[size.plane(1) + at] = uint8_t(96 + (x + 2 * number) % 128 / 2);
            picture[size.plane(2) + at] = uint8_t(160 - 128 * y / size.h);
        }
    }
    pad(picture, size);
    return picture;
}
