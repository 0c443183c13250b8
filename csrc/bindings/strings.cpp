#include "bindings/bindings.h"

#include <cstring>
#include <stdexcept>

namespace kokuban {
namespace {

// The bytes of an object, held for as long as this lives.
class Bytes {
  public:
    explicit Bytes(nb::handle object) {
        if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_SIMPLE) != 0) nb::raise_python_error();
    }
    ~Bytes() { PyBuffer_Release(&view_); }
    Bytes(const Bytes&) = delete;
    Bytes& operator=(const Bytes&) = delete;

    const char* data() const { return static_cast<const char*>(view_.buf); }
    size_t size() const { return static_cast<size_t>(view_.len); }

  private:
    Py_buffer view_;
};

// Calls `use` with the place and the length of `count` strings, each behind its length as a
// little-endian uint64. Returns where the last one ends.
template <typename Use>
size_t walk(const Bytes& bytes, size_t position, size_t count, Use use) {
    for (size_t i = 0; i < count; ++i) {
        uint64_t length;
        if (position > bytes.size() || bytes.size() - position < sizeof(length)) throw std::out_of_range("a length reaches past the end");
        std::memcpy(&length, bytes.data() + position, sizeof(length));
        position += sizeof(length);
        if (length > bytes.size() - position) throw std::out_of_range("a string reaches past the end");
        use(bytes.data() + position, static_cast<Py_ssize_t>(length));
        position += length;
    }
    return position;
}

size_t skip_strings(nb::handle buffer, size_t start, size_t count) {
    return walk(Bytes(buffer), start, count, [](const char*, Py_ssize_t) {});
}

nb::list read_strings(nb::handle buffer, size_t start, size_t count) {
    nb::list strings;
    walk(Bytes(buffer), start, count, [&](const char* text, Py_ssize_t length) {
        nb::object string = nb::steal(PyUnicode_DecodeUTF8(text, length, "replace"));
        if (!string.is_valid()) nb::raise_python_error();
        strings.append(string);
    });
    return strings;
}

}  // namespace

void bind_strings(nb::module_& module) {
    module.def("skip_strings", &skip_strings);
    module.def("read_strings", &read_strings);
}

}  // namespace kokuban
