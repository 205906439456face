// SPDX-License-Identifier: Apache-2.0

// A function of a shared library as a Python callable, as ctypes makes them, for what libmooncake needs: arguments that
// are integers, strings and memory, and results that are integers or strings. It knows addresses only and links nothing.
//
// Arguments are taken as ctypes takes them. An integer is cut to the width of its type. Memory is None, an address,
// bytes, an instance of c_void_p, byref() of something without an offset, or anything with a buffer, which stays where it
// is until the call has returned. The function runs without the GIL.

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <stdint.h>
#include <structmember.h>

enum { max_arguments = 14 };

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    void *address;
    PyObject *name;
    PyObject *void_pointer_type;   // ctypes.c_void_p
    PyObject *reference_type;      // type(ctypes.byref(...))
    PyObject *argument_error;      // ctypes.ArgumentError
    char result;                   // i int, q int64_t, p void *, s const char *, v void
    char kinds[max_arguments + 1]; // i int, q 64 bits, s string, p memory
} Function;

static PyObject *obj_name; // "_obj"

// call calls a function with n arguments in the registers and on the stack, where C puts integers and pointers.
static uint64_t call(void *f, size_t n, const uint64_t *a) {
    typedef uint64_t u;
    switch (n) {
    case 0: return ((u (*)(void))f)();
    case 1: return ((u (*)(u))f)(a[0]);
    case 2: return ((u (*)(u, u))f)(a[0], a[1]);
    case 3: return ((u (*)(u, u, u))f)(a[0], a[1], a[2]);
    case 4: return ((u (*)(u, u, u, u))f)(a[0], a[1], a[2], a[3]);
    case 5: return ((u (*)(u, u, u, u, u))f)(a[0], a[1], a[2], a[3], a[4]);
    case 6: return ((u (*)(u, u, u, u, u, u))f)(a[0], a[1], a[2], a[3], a[4], a[5]);
    case 7: return ((u (*)(u, u, u, u, u, u, u))f)(a[0], a[1], a[2], a[3], a[4], a[5], a[6]);
    case 8: return ((u (*)(u, u, u, u, u, u, u, u))f)(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7]);
    default:
        // Arguments beyond a function's own are not looked at, and the caller takes them off the stack.
        return ((u (*)(u, u, u, u, u, u, u, u, u, u, u, u, u, u))f)(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8],
                                                                  a[9], a[10], a[11], a[12], a[13]);
    }
}

static int refuse(const Function *f, Py_ssize_t i, PyObject *value) {
    PyErr_Format(f->argument_error, "%U: argument %zd: wrong type %.100s", f->name, i + 1, Py_TYPE(value)->tp_name);
    return -1;
}

static int integer(const Function *f, Py_ssize_t i, PyObject *value, uint64_t *out) {
    if (!PyLong_Check(value)) return refuse(f, i, value);
    *out = PyLong_AsUnsignedLongLongMask(value);
    return *out == (uint64_t)-1 && PyErr_Occurred() ? -1 : 0;
}

// memory finds the address of what an argument stands for. 1 says that view has to be released.
static int memory(const Function *f, Py_ssize_t i, PyObject *value, uint64_t *out, Py_buffer *view) {
    if (value == Py_None) {
        *out = 0;
        return 0;
    }
    if (PyBytes_CheckExact(value)) {
        *out = (uint64_t)(uintptr_t)PyBytes_AS_STRING(value);
        return 0;
    }
    if (PyLong_Check(value)) return integer(f, i, value, out);
    PyObject *target = NULL;
    if ((PyObject *)Py_TYPE(value) == f->reference_type) {
        target = PyObject_GetAttr(value, obj_name);
        if (target == NULL) return -1;
        value = target;
    }
    int bad = PyObject_GetBuffer(value, view, PyBUF_SIMPLE);
    Py_XDECREF(target); // the reference in the caller's arguments keeps it, and so does view
    if (bad != 0) {
        PyErr_Clear();
        return refuse(f, i, value);
    }
    *out = (uint64_t)(uintptr_t)view->buf;
    if (target == NULL && PyObject_TypeCheck(value, (PyTypeObject *)f->void_pointer_type))
        *out = *(uint64_t *)view->buf;
    return 1;
}

static PyObject *result_of(const Function *f, uint64_t r) {
    switch (f->result) {
    case 'i': return PyLong_FromLong((int)r);
    case 'q': return PyLong_FromLongLong((int64_t)r);
    case 'p':
        if (r != 0) return PyLong_FromUnsignedLongLong(r);
        break;
    case 's':
        if (r != 0) return PyBytes_FromString((const char *)(uintptr_t)r);
        break;
    }
    Py_RETURN_NONE;
}

static PyObject *function_vectorcall(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *kwnames) {
    Function *f = (Function *)self;
    Py_ssize_t n = PyVectorcall_NARGS(nargsf), want = (Py_ssize_t)strlen(f->kinds);
    if (n != want || (kwnames != NULL && PyTuple_GET_SIZE(kwnames) > 0))
        return PyErr_Format(PyExc_TypeError, "%U takes %zd positional arguments", f->name, want);
    uint64_t a[max_arguments] = {0};
    Py_buffer views[max_arguments];
    int held = 0;
    for (Py_ssize_t i = 0; i < n; i++) {
        int bad = 0;
        switch (f->kinds[i]) {
        case 's':
            if (args[i] != Py_None && !PyBytes_Check(args[i])) {
                bad = refuse(f, i, args[i]);
                break;
            }
            a[i] = args[i] == Py_None ? 0 : (uint64_t)(uintptr_t)PyBytes_AS_STRING(args[i]);
            break;
        case 'p':
            bad = memory(f, i, args[i], &a[i], &views[held]);
            if (bad == 1) held++, bad = 0;
            break;
        default: bad = integer(f, i, args[i], &a[i]);
        }
        if (bad != 0) {
            while (held > 0) PyBuffer_Release(&views[--held]);
            return NULL;
        }
    }
    uint64_t r;
    Py_BEGIN_ALLOW_THREADS
    r = call(f->address, (size_t)n, a);
    Py_END_ALLOW_THREADS
    while (held > 0) PyBuffer_Release(&views[--held]);
    return result_of(f, r);
}

static void function_dealloc(Function *f) {
    Py_XDECREF(f->name);
    Py_XDECREF(f->void_pointer_type);
    Py_XDECREF(f->reference_type);
    Py_XDECREF(f->argument_error);
    Py_TYPE(f)->tp_free((PyObject *)f);
}

static PyObject *function_repr(Function *f) { return PyUnicode_FromFormat("<function %U of libmooncake.so>", f->name); }

static PyMemberDef function_members[] = {
    {"__name__", T_OBJECT, offsetof(Function, name), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyTypeObject function_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "libmooncake_fast.Function",
    .tp_basicsize = sizeof(Function),
    .tp_dealloc = (destructor)function_dealloc,
    .tp_vectorcall_offset = offsetof(Function, vectorcall),
    .tp_repr = (reprfunc)function_repr,
    .tp_call = PyVectorcall_Call,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_members = function_members,
    .tp_doc = "A function of libmooncake.so.",
};

// from_ctypes finds what arguments can be instances of. A subinterpreter's ctypes has types of its own, and this module is
// the same in all: so a function knows those of the interpreter that it was made in.
static int from_ctypes(Function *f) {
    PyObject *ctypes = PyImport_ImportModule("ctypes");
    if (ctypes == NULL) return -1;
    f->void_pointer_type = PyObject_GetAttrString(ctypes, "c_void_p");
    f->argument_error = PyObject_GetAttrString(ctypes, "ArgumentError");
    PyObject *sample = f->void_pointer_type == NULL ? NULL : PyObject_CallNoArgs(f->void_pointer_type);
    PyObject *reference = sample == NULL ? NULL : PyObject_CallMethod(ctypes, "byref", "O", sample);
    if (reference != NULL) {
        f->reference_type = (PyObject *)Py_TYPE(reference);
        Py_INCREF(f->reference_type);
    }
    Py_XDECREF(reference);
    Py_XDECREF(sample);
    Py_DECREF(ctypes);
    return f->reference_type != NULL && f->argument_error != NULL ? 0 : -1;
}

static PyObject *function(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *name;
    unsigned long long address;
    const char *result, *kinds;
    if (!PyArg_ParseTuple(args, "UKss", &name, &address, &result, &kinds)) return NULL;
    if (address == 0 || strlen(result) != 1 || strchr("iqpsv", result[0]) == NULL || strlen(kinds) > max_arguments ||
        strspn(kinds, "iqsp") != strlen(kinds))
        return PyErr_Format(PyExc_ValueError, "%U: no such signature: %s(%s)", name, result, kinds);
    Function *f = PyObject_New(Function, &function_type);
    if (f == NULL) return NULL;
    f->vectorcall = function_vectorcall;
    f->address = (void *)(uintptr_t)address;
    Py_INCREF(name);
    f->name = name;
    f->void_pointer_type = f->reference_type = f->argument_error = NULL;
    f->result = result[0];
    strcpy(f->kinds, kinds);
    if (from_ctypes(f) != 0) {
        Py_DECREF(f);
        return NULL;
    }
    return (PyObject *)f;
}

static PyMethodDef methods[] = {
    {"function", function, METH_VARARGS,
     "function(name, address, result, kinds): the function of a shared library at an address. result is i int, q int64_t, "
     "p void *, s const char *, v void; kinds has a letter for each argument: i int, q 64 bits, s string, p memory."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "libmooncake_fast", "Quicker calls into libmooncake.so than ctypes makes.", -1, methods,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit_libmooncake_fast(void) {
    obj_name = PyUnicode_InternFromString("_obj");
    if (obj_name == NULL || PyType_Ready(&function_type) != 0) return NULL;
    return PyModule_Create(&module);
}
