"""What Python lacks on systems other than Linux, taken away in a process of this one."""

WITHOUT_ON = {
    "linux": {},
    "darwin": {
        "os": ("sched_getaffinity", "sched_setaffinity", "posix_fallocate", "pidfd_open"),
        "signal": ("sigtimedwait", "sigwaitinfo"),
        "modules": (),
    },
    "win32": {
        "os": (
            "O_NONBLOCK", "O_NOCTTY", "O_CLOEXEC", "O_NOFOLLOW", "O_ASYNC", "O_SYNC", "O_DIRECTORY", "getuid",
            "geteuid", "getgid", "getegid", "fork", "pread", "pwrite", "sched_getaffinity", "sched_setaffinity",
            "posix_fallocate", "sysconf", "uname", "statvfs", "killpg", "setsid", "getpgid", "getpgrp", "fchmod",
            "chown", "getloadavg", "register_at_fork", "waitid", "nice", "mkfifo", "openpty", "pidfd_open",
        ),
        "signal": (
            "SIGHUP", "SIGKILL", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGCHLD", "SIGSTOP", "SIGCONT", "SIGTSTP", "SIGALRM",
            "SIGPIPE", "SIGXCPU", "SIGXFSZ", "pthread_sigmask", "pthread_kill", "sigpending", "sigwait", "sigtimedwait",
            "sigwaitinfo", "setitimer", "alarm", "siginterrupt", "pause",
        ),
        "modules": ("fcntl", "resource", "pwd", "grp", "termios", "pty", "tty", "syslog"),
    },
}  # fmt: skip
"""What Python does not have on other systems (https://docs.python.org/3/library/os.html, signal.html, unix.html)."""

AS_ON = """
import concurrent.futures, gzip, json, pathlib, platform, shutil, socket, ssl, subprocess, tempfile, urllib.request
import os, signal, sys
system, missing = {system!r}, {missing!r}
for module in (os, signal):
    for name in missing.get(module.__name__, ()):
        vars(module).pop(name, None)
gone = missing.get("modules", ())
for name in gone:
    sys.modules.pop(name, None)
class Gone:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in gone:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Gone())
sys.platform = system
"""
"""A program that takes away `missing` and calls itself `system`; what it imports first may use all of this system."""
