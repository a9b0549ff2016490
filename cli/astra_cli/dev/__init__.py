"""
The dev cluster: machines that are network namespaces of this one, a coordinator and agents as processes, and a
containerd of their own. Nothing of this machine's own network, containers or services is touched.
"""
